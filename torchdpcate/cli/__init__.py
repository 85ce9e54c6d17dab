"""The program torchdpcate."""
