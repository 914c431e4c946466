"""Asking sites: the only place that sends questions."""
