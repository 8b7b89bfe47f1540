"""What all frameworks' replicated training has in common; it imports none of them."""
