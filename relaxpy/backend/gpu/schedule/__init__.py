"""Schedules for GPUs, as rules that are tried in order (`relaxpy.backend.schedule`)."""
