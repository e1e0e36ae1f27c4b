"""Scripts for a release."""
