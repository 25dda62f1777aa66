"""A bench: methods of allocating depth on tasks, with seeds, and the page that says which to take."""
