"""What a user can ask for: request, route, context, loading, execution. Plain values, without torch."""
