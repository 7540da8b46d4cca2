/* state/folder.h - the files of a state folder: its lock, durable copies and moves, the
 * reserve. Knows nothing of what is in them.
 *
 * A copy is on the disk (fsync) when the call returns, a move when the folder was synced
 * too. A database file moves together with its -wal and -shm. Control thread. */
#ifndef STATE_FOLDER_H
#define STATE_FOLDER_H

#include <stdbool.h>

struct err;

enum { FOLDER_PATH_MAX = 4096 };

/* dir/name; INVALID when it is too long. */
int folder_path(const char *dir, const char *name, char ret[FOLDER_PATH_MAX],
                struct err *e);
/* Makes dir where it is absent and takes dir/llmrackd.lock; closing *ret_fd gives it
 * back. CONFLICT names the process that has it. */
int folder_lock(const char *dir, int *ret_fd, struct err *e);
/* Bytes of the file, -1 when there is none. */
long long folder_size(const char *path);
/* A new file of mode 0600 with the bytes of a regular one; on a fault there is none. */
int folder_copy(const char *from, const char *to, struct err *e);
int folder_sync_file(const char *path, struct err *e);
int folder_sync(const char *dir, struct err *e);
int folder_rename(const char *from, const char *to, struct err *e);
/* A second name for it, never over another file (CONFLICT). */
int folder_link(const char *path, const char *as, struct err *e);
/* A database and its sidecars; those that are absent are left out, so that a move that
 * was cut off can be repeated. */
int folder_move_db(const char *from, const char *to, struct err *e);
void folder_remove_db(const char *path);

/* Names in dir that begin with prefix and end with suffix, sorted, newest (greatest)
 * first: malloc'd array of malloc'd names; returns the count, 0 when there is no folder.
 */
int folder_list(const char *dir, const char *prefix, const char *suffix, char ***ret);
void folder_list_free(char **names, int n);

/* dir/reserve: room that is given up when the disk is full, so that what must be written
 * still fits. keep makes it where there is room and tells whether it stands; give returns
 * whether there was any to give. */
bool folder_reserve_keep(const char *dir);
bool folder_reserve_give(const char *dir);

#endif
