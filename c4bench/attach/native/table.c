/* Open addressing with linear probing (Knuth, "The Art of Computer Programming", volume 3, 6.4). A key that is taken out
   leaves a mark, so that searches for keys behind it go on; marks before an empty place are emptied. A key in the table
   never moves, so a reader needs no lock. A quarter of the places stays empty, which ends every search. */
#include "table.h"

enum { EMPTY = 0, LEFT = 1 };

int table_set(struct table *table, uint64_t key, void *value)
{
	struct place *into = NULL, *place;
	uint64_t number = table_home(key);

	for (;; number++) {
		place = table_place(table, number);
		if (place->key == key) {
			place->value = value;
			return 1;
		}
		if (!into && place->key == LEFT)
			into = place;
		if (place->key == EMPTY)
			break;
	}
	if (!into) {
		if (table->used >= TABLE_PLACES / 4 * 3)
			return 0;
		table->used++;
		into = place;
	}
	into->value = value;
	into->key = key;
	return 1;
}

/* Empty the marks that nothing follows. */
static void tidy(struct table *table, uint64_t number)
{
	if (table_place(table, number + 1)->key != EMPTY)
		return;
	for (; table_place(table, number)->key == LEFT; number--) {
		table_place(table, number)->key = EMPTY;
		table->used--;
	}
}

void *table_take(struct table *table, uint64_t key)
{
	for (uint64_t number = table_home(key);; number++) {
		struct place *place = table_place(table, number);
		if (place->key == EMPTY)
			return NULL;
		if (place->key != key)
			continue;
		void *value = place->value;
		place->key = LEFT;
		tidy(table, number);
		return value;
	}
}
