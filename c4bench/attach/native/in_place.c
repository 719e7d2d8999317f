/* The form that stands in libibverbs' place. It has the versions of the real one's symbols (build.py), and needs it by its
   path; so whoever looks for what is not here, by ld.so or dlvsym, finds it there. */
#define _GNU_SOURCE
#include "form.h"
#include "real.h"

#include <dlfcn.h>
#include <stddef.h>

#define TEXT(name) #name
#define NAME(macro) TEXT(macro)

const char *watched_by_another(void)
{
	return real_dlsym()(RTLD_DEFAULT, NAME(PRELOADED)) ? "the preloaded library watches it" : NULL;
}
