#include "say.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

enum { REASONS = 64, LINE_BYTES = 512 };

/* Whether this reason, known by its format, is new. Threads that meet the same one at once say it once. */
static int is_new(const char *format)
{
	static const char *_Atomic said[REASONS];

	for (int i = 0; i < REASONS; i++) {
		const char *expected = NULL;
		if (atomic_compare_exchange_strong(&said[i], &expected, format))
			return 1;
		if (expected == format)
			return 0;
	}
	return 0;
}

void say(const char *format, ...)
{
	char text[LINE_BYTES], line[LINE_BYTES + 32];
	va_list values;

	if (!is_new(format))
		return;
	va_start(values, format);
	vsnprintf(text, sizeof text, format, values);
	va_end(values);
	int length = snprintf(line, sizeof line, "c4bench attach: %s\n", text);
	/* Standard error may be closed or full; the program goes on either way. */
	if (write(STDERR_FILENO, line, (size_t)length) < 0)
		return;
}
