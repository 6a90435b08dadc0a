"""Capacity planning: how many requests a model and a memory hold. Arithmetic alone, no device."""

from paxkv.capacity.model_bytes import ModelBytes
from paxkv.capacity.plan import CapacityPlan, Question, make_plan

__all__ = ["CapacityPlan", "ModelBytes", "Question", "make_plan"]
