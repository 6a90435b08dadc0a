"""Tools of a chat request, and the structured output that forces a call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

from paxkv.server.errors import BadRequest
from paxkv.server.grammar.forms import SentForm, sent_form
from paxkv.text.json_schema import embedded
from paxkv.validation import shown

MOST_TOOLS = 128
LONGEST_NAME = 256
CHOICES = ("none", "auto", "required")


@dataclass(frozen=True)
class Tools:
    """The functions a model may call.

    given: as sent, for the chat template. parameters: JSON schema of the arguments, by name.
    choice: "auto", "required", or "named", and then only the named function is left.
    """

    given: list[dict[str, Any]]
    parameters: Mapping[str, Any]
    choice: str

    @classmethod
    def read(cls, tools: Any, choice: Any) -> Tools | None:
        """Read the tools; None if none may be called. Raises BadRequest naming the field."""
        if not tools:
            if choice not in (None, "none", "auto"):
                raise BadRequest("tool_choice needs tools", param="tool_choice")
            return None
        parameters = _read(tools)
        if choice is None or choice in CHOICES:
            return None if choice == "none" else cls(tools, parameters, choice or "auto")
        function = choice.get("function") if isinstance(choice, dict) else None
        name = function.get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or name not in parameters:
            raise BadRequest(
                f"tool_choice must be one of {', '.join(CHOICES)}, or "
                '{"type": "function", "function": {"name": NAME}} with one of the tools; got '
                f"{shown(choice)}",
                param="tool_choice",
            )
        return cls(tools, {name: parameters[name]}, "named")

    def form(self, *, open_objects: bool = False) -> SentForm | None:
        """Structured output that forces a call: the arguments of the named function, or a list
        of calls. None if the model may answer freely.

        open_objects: leave objects open that say nothing of additionalProperties, unless a tool
        is strict.
        """
        if self.choice == "auto":
            return None
        strict = any(tool["function"].get("strict") is True for tool in self.given)
        options = {"disable_additional_properties": strict or not open_objects}
        if self.choice == "named":
            (schema,) = self.parameters.values()
            return sent_form("tools", json=schema, **options)
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": name},
                    "parameters": embedded(schema, f"tool:{index}"),
                },
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
            for index, (name, schema) in enumerate(self.parameters.items())
        ]
        schema = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
        return sent_form("tools", json=schema, **options)


def _is_name(name: Any) -> TypeGuard[str]:
    return isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable()


def _read(tools: Any) -> dict[str, Any]:
    """JSON schemas by function name."""
    if not isinstance(tools, list) or len(tools) > MOST_TOOLS:
        raise BadRequest(f"tools must be a list of at most {MOST_TOOLS} functions", param="tools")
    parameters: dict[str, Any] = {}
    for index, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or tool.get("type") != "function":
            raise BadRequest(
                f'tools[{index}] must be {{"type": "function", "function": {{…}}}}', param="tools"
            )
        name, schema = function.get("name"), function.get("parameters")
        if not _is_name(name) or name in parameters:
            raise BadRequest(
                f"tools[{index}].function.name must be printable, of at most {LONGEST_NAME} "
                "characters, and no other's",
                param="tools",
            )
        if schema is not None and not isinstance(schema, dict):
            raise BadRequest(
                f"tools[{index}].function.parameters must be a JSON schema", param="tools"
            )
        if schema and schema.get("type", "object") != "object":
            raise BadRequest(
                f"tools[{index}].function.parameters must be of the type object, got "
                f"{shown(schema['type'])}: arguments are an object",
                param="tools",
            )
        parameters[name] = {"type": "object", **(schema or {"properties": {}})}
    return parameters
