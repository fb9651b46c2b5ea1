"""Questions about programs that several passes ask."""

from relaxpy.analysis.well_formed import check_well_formed, well_formed

__all__ = ["check_well_formed", "well_formed"]
