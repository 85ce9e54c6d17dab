"""One composition of Gaussian events on all records."""
