"""Tools of a chat: how a model is told of them, and the grammar of calls that must come.

Tools have OpenAI's shape here: `{"type": "function", "function": {"name": …, "description": …, "parameters": {…}}}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from relaxpy.errors import UsageError
from relaxpy.llm.template_probes import Abilities
from relaxpy.narrow import is_list, is_mapping
from relaxpy.serve.grammar import json_schema_grammar
from relaxpy.serve.json_schema import relocated
from relaxpy.server.answer_parser import Format
from relaxpy.server.closed_schema import closed
from relaxpy.server.contents import after_text
from relaxpy.server.errors import ApiError

Tool = Mapping[str, Any]
_HERMES = """\
You may call functions. These are their descriptions:
<tools>
{tools}
</tools>
To call one, write a JSON object with its name and arguments between these tags:
<tool_call>
{{"name": "the name", "arguments": {{}}}}
</tool_call>"""


def calls_grammar(tools: Sequence[Tool], name: str | None, several: bool) -> str:
    """The grammar of calls: of the tool of a name, or of any of the tools; a list of one or more if `several`.

    Raises: ApiError for a name that no tool has, or for parameters that cannot be enforced.
    """
    chosen = [each for each in tools if name in (None, name_of(each))]
    if not chosen:
        raise ApiError(
            f"tool_choice names {str(name)[:100]!r}, which is none of the tools",
            param="tool_choice",
        )
    try:
        for each in chosen:
            json_schema_grammar(parameters_of(each))  # its error is about this tool alone
        definitions = {
            str(number): relocated(closed(own), f"#/$defs/{number}", own.get("$id"))
            for number, own in enumerate(map(parameters_of, chosen))
        }
        calls = [_call_schema(each, number) for number, each in enumerate(chosen)]
        call: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
        if several and name is None:
            call = {"type": "array", "items": call, "minItems": 1, "maxItems": 16}
        return json_schema_grammar({**call, "$defs": definitions}, compact=True)
    except UsageError as error:
        found = ApiError.of(error)
        found.param = "tools"
        raise found from None


def _call_schema(tool: Tool, number: int) -> dict[str, Any]:
    """Of a call of the tool whose parameters are the definition of a number."""
    return {
        "type": "object",
        "properties": {
            "name": {"const": name_of(tool)},
            "arguments": {"$ref": f"#/$defs/{number}"},
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def name_of(tool: Tool) -> str:
    return tool["function"]["name"]


def parameters_of(tool: Tool) -> Mapping[str, Any]:
    """The schema of a tool's arguments, which are an object also where it does not say so."""
    own: Mapping[str, Any] = tool["function"].get("parameters") or {}
    kinds = own.get("type")
    if kinds is None or (is_list(kinds) and "object" in kinds):
        return {**own, "type": "object"}
    return own


def prompted(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Tool], reads: Abilities
) -> tuple[list[dict[str, Any]], bool]:
    """Messages for a template, and whether it writes the tools itself. What it does not read of tools, calls and
    results it gets as text, in the manner of Hermes."""
    if not (tools or any(_is_about_tools(each) for each in messages)):
        return [dict(each) for each in messages], True
    found = [_with_objects(each) if reads.calls else _as_text(each) for each in messages]
    if tools and not reads.tools:
        described = "\n".join(json.dumps(each["function"], ensure_ascii=False) for each in tools)
        first = found[0] if found else {"role": "user", "content": ""}
        content = after_text(_HERMES.format(tools=described), first.get("content"))
        found[:1] = [{**first, "content": content}]
    return found, reads.tools


def format_for(format: Format) -> Format:
    """The format in which calls come, from that of the template."""
    return "hermes" if format == "none" else format


def _is_about_tools(message: Mapping[str, Any]) -> bool:
    return message.get("role") == "tool" or bool(message.get("tool_calls"))


def _with_objects(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose calls have arguments as objects, as templates expect them."""
    if not message.get("tool_calls"):
        return dict(message)
    calls = [
        {**call, "function": {**call["function"], "arguments": _object(call["function"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "content": message.get("content") or "", "tool_calls": calls}


def _object(function: Mapping[str, Any]) -> Any:
    arguments = function.get("arguments", "{}")
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments
    return value if is_mapping(value) else arguments


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message in which calls and results are text."""
    if message.get("role") == "tool":
        text = f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"
        return {"role": "user", "content": text}
    calls = "".join(
        "\n<tool_call>\n"
        + json.dumps(
            {"name": call["function"]["name"], "arguments": _object(call["function"])},
            ensure_ascii=False,
        )
        + "\n</tool_call>"
        for call in message.get("tool_calls") or ()
    )
    found = {key: value for key, value in message.items() if key != "tool_calls"}
    return {**found, "content": f"{found.get('content') or ''}{calls}".lstrip("\n")}
