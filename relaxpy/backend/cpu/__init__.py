"""Processors: schedule rules, weight layouts, lowering and object code."""
