"""The site and the findings page of studies, from their results."""
