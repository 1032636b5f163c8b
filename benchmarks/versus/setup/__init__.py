"""Sets up each engine below build/, only what is missing, and says what it fetches."""
