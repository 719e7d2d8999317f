/* What the lab's library offers where it is loaded too; elsewhere these do nothing. */
#pragma once

__attribute__((weak)) void c4bench_waited_in_vain(void);
__attribute__((weak)) void c4bench_progressed(void);

static inline void waited_in_vain(void)
{
	if (c4bench_waited_in_vain)
		c4bench_waited_in_vain();
}

static inline void progressed(void)
{
	if (c4bench_progressed)
		c4bench_progressed();
}
