"""A run's numbers as pictures: what is drawn, how, and the page that holds it."""
