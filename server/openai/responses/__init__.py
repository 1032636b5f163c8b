"""The Responses API: requests, output items, events, stored responses."""
