"""The method: spans, noise, history, router, and the speculative loop. No models, files or devices in here."""
