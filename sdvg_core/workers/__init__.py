"""Spreading tasks over processes that each hold the models: on this machine, or on a Ray cluster."""
