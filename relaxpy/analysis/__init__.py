"""Analyses of programs that several passes share."""

from relaxpy.analysis.dataflow_match import Match, find_matches, match
from relaxpy.analysis.well_formed import check_well_formed, well_formed

__all__ = ["Match", "check_well_formed", "find_matches", "match", "well_formed"]


def __dir__() -> list[str]:
    return sorted(__all__)
