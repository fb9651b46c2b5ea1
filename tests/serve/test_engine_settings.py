"""Settings of an engine, through JSON."""

from __future__ import annotations

import json

from relaxpy.models.loaded import Scheme
from relaxpy.serve.engine_settings import EngineSettings
from relaxpy.server.settings import ModelSettings


def test_options_are_the_settings_again() -> None:
    """Those of a model of a server, too, without what is the server's."""
    own = EngineSettings(
        place="a",
        scheme=Scheme(8, adapters=("query",)),
        threads=2,
        adapters=(("b", "c"), ("d", "e")),
    )
    assert EngineSettings.of(json.loads(json.dumps(own.options()))) == own
    plain = EngineSettings(place="a")
    model = ModelSettings(name="m", place="a", chat_template="x")
    assert EngineSettings.of(json.loads(json.dumps(model.options()))) == plain
