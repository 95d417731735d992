-- Format 8: when the lines of an output came: JSON pairs of a line and the seconds since the start of the run.
ALTER TABLE run ADD COLUMN output_times TEXT;
