/* One line to the user of the program, on its standard error output. */
#pragma once

#pragma GCC visibility push(hidden)

/* Say why something is left out, each reason once in a process. */
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#pragma GCC visibility pop
