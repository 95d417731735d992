"""What people and machines get to see of a verification: text, JSON, and a page with a time line."""
