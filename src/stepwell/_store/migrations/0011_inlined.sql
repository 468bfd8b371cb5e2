-- What a question is known by, computed where it is used and not by a call: 1.4 µs instead of 4. A function that is
-- declared immutable and calls one that is only stable (convert_to) is never made part of the statement around it.
alter function stepwell._correlation(text, bigint, integer, integer, text) stable;
