"""ResponseTurn: a conversation's next turn, from a body of /v1/responses."""

from __future__ import annotations

import uuid
from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

from paxkv.engine.request import Request
from paxkv.server.errors import BadRequest
from paxkv.server.prompts import Truncation
from paxkv.server.responses.body import ResponseBody
from paxkv.server.responses.items import Item, messages_of, read_items
from paxkv.server.routes.chat import ChatBody, chat_requests, prompt_ids
from paxkv.server.service import Service
from paxkv.server.tools.definitions import Tools
from paxkv.validation import shown

SYSTEM = ("system", "developer")


@dataclass(frozen=True)
class ResponseTurn:
    """One turn. before: items of the stored conversation it continues. items: those sent."""

    response_id: str
    before: list[Item]
    items: list[Item]
    chat: ChatBody
    tools: Tools | None
    request: Request

    def added(self, output: list[Item]) -> list[Item]:
        """Items that the turn adds to the conversation, without calls that were cut off."""
        calls = ("function_call", "incomplete")
        return [*self.items, *(i for i in output if (i["type"], i["status"]) != calls)]


def read_turn(service: Service, body: ResponseBody, owner: bytes) -> ResponseTurn:
    """The turn, with the engine's request for it; blocking. Raises BadRequest.

    owner: the caller; only its own stored responses can be continued.
    """
    before: list[Item] = []
    if body.previous_response_id is not None:
        found = service.responses.conversation(owner, body.previous_response_id)
        if found is None:
            raise BadRequest(
                f"Previous response with id {shown(body.previous_response_id)} not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        before = found
    items = read_items(body.input, lambda item_id: service.responses.item(owner, item_id))
    messages = messages_of([*before, *items])
    if body.instructions is not None:
        messages.insert(0, {"role": "system", "content": body.instructions})
    response_id = f"resp_{uuid.uuid4().hex}"
    chat = body.chat(messages)
    tools = Tools.read(chat.tools, chat.tool_choice)
    if body.truncation == "auto":
        chat.messages = _fitting(service, chat, tools)
    (request,) = chat_requests(service, chat, tools, response_id)
    return ResponseTurn(response_id, before, items, chat, tools, request)


def _fitting(service: Service, chat: ChatBody, tools: Tools | None) -> list[dict[str, Any]]:
    """The messages without the oldest turns, as few as leave room for the answer.

    System messages at the beginning stay, and so does the last turn, which may be too long.
    """
    limits = service.model.engine.config
    answer: Any = chat.max_completion_tokens or 1
    room = max(1, min(limits.max_prompt_len, limits.max_model_len - answer))
    truncation = Truncation(room + 1, service.longest_text)
    messages = chat.messages
    others = [i for i, message in enumerate(messages) if message["role"] not in SYSTEM]
    head = messages[: others[0]] if others else messages
    starts = others[:1] + [i for i in others[1:] if messages[i]["role"] == "user"]

    def kept(start: int) -> list[dict[str, Any]]:
        return [*head, *messages[start:]]

    def fits(start: int) -> bool:
        shorter = chat.model_copy(update={"messages": kept(start)})
        return len(prompt_ids(service, shorter, tools, truncation)) <= room

    if not starts:
        return messages
    found = bisect_left(starts, True, hi=len(starts) - 1, key=fits)
    return kept(starts[found])
