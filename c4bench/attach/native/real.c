/* dlsym is itself one of the functions that this library replaces, so the real one is looked up in libc's own table of
   symbols (System V ABI, "Hash Table"; the GNU variant is described in binutils' bfd/elflink.c). */
#define _GNU_SOURCE
#include "real.h"

#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The form that stands in libibverbs' place (in_place.c) is compiled with the real one's path: by name it finds itself. */
#ifndef REAL_VERBS
#define REAL_VERBS "libibverbs.so.1"
#endif

struct libc {
	dlsym_function *dlsym;
	dlvsym_function *dlvsym;
};

struct symbols {
	ElfW(Addr) base;
	const ElfW(Sym) *table;
	const char *names;
	const uint32_t *hash;
};

static struct symbols symbols_of(const struct dl_phdr_info *object)
{
	struct symbols found = {object->dlpi_addr, NULL, NULL, NULL};

	for (int i = 0; i < object->dlpi_phnum; i++) {
		if (object->dlpi_phdr[i].p_type != PT_DYNAMIC)
			continue;
		for (const ElfW(Dyn) *d = (const void *)(found.base + object->dlpi_phdr[i].p_vaddr); d->d_tag != DT_NULL; d++) {
			if (d->d_tag == DT_SYMTAB)
				found.table = (const void *)d->d_un.d_ptr;
			if (d->d_tag == DT_STRTAB)
				found.names = (const void *)d->d_un.d_ptr;
			if (d->d_tag == DT_GNU_HASH)
				found.hash = (const void *)d->d_un.d_ptr;
		}
	}
	return found;
}

static uint32_t gnu_hash(const char *name)
{
	uint32_t hash = 5381;

	for (; *name; name++)
		hash = hash * 33 + (unsigned char)*name;
	return hash;
}

static void *symbol(const struct symbols *in, const char *name)
{
	uint32_t buckets = in->hash[0], first = in->hash[1], bloom_words = in->hash[2], wanted = gnu_hash(name);
	const uint32_t *bucket = in->hash + 4 + bloom_words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
	const uint32_t *chain = bucket + buckets;
	uint32_t i = bucket[wanted % buckets];

	if (i < first)
		return NULL;
	for (;; i++) {
		uint32_t hash = chain[i - first];
		if ((hash | 1) == (wanted | 1) && !strcmp(in->names + in->table[i].st_name, name))
			return (void *)(in->base + in->table[i].st_value);
		if (hash & 1)
			return NULL;
	}
}

static int look_in(struct dl_phdr_info *object, size_t size, void *into)
{
	struct libc *found = into;
	const char *base = strrchr(object->dlpi_name, '/');

	(void)size;
	if (!base || strcmp(base, "/libc.so.6"))
		return 0;
	struct symbols in = symbols_of(object);
	if (!in.table || !in.names || !in.hash)
		return 0;
	found->dlsym = symbol(&in, "dlsym");
	found->dlvsym = symbol(&in, "dlvsym");
	return 1;
}

static struct libc *libc(void)
{
	static struct libc found;

	if (!found.dlsym)
		dl_iterate_phdr(look_in, &found);
	return &found;
}

dlsym_function *real_dlsym(void)
{
	return libc()->dlsym;
}

dlvsym_function *real_dlvsym(void)
{
	return libc()->dlvsym;
}

void *real_libc(const char *name)
{
	return real_dlsym() ? real_dlsym()(RTLD_NEXT, name) : NULL;
}

void *real_verbs(const char *name)
{
	void *handle = dlopen(REAL_VERBS, RTLD_NOW);

	return handle && real_dlvsym() ? real_dlvsym()(handle, name, VERBS_VERSION) : NULL;
}

void *real_verbs_newer(const char *name)
{
	void *handle = dlopen(REAL_VERBS, RTLD_NOW);

	return handle && real_dlsym() ? real_dlsym()(handle, name) : NULL;
}
