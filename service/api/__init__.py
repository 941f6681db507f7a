"""The API: routes, what they take and give, and bounds on what strangers send."""
