/* Preloaded into the user-mode kernel: its only entropy becomes a stream fixed by C4BENCH_SEED (splitmix64), so that two
   boots with one seed draw the same keys, addresses and hashes. The kernel configuration leaves out the hwrng driver,
   which would read the machine's /dev/random beside it. */
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>

static uint64_t next_word(void)
{
	static uint64_t state;
	static int seeded;

	if (!seeded) {
		const char *seed = getenv("C4BENCH_SEED");
		state = seed ? strtoull(seed, NULL, 10) : 0;
		seeded = 1;
	}
	state += 0x9E3779B97F4A7C15ull;
	uint64_t z = state;
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
	z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
	return z ^ (z >> 31);
}

ssize_t getrandom(void *buffer, size_t length, unsigned int flags)
{
	unsigned char *out = buffer;

	(void)flags;
	for (size_t i = 0; i < length; i++)
		out[i] = (unsigned char)next_word();
	return (ssize_t)length;
}
