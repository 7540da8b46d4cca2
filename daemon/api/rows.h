/* daemon/api/rows.h - one row of each kind as a JSON object, the same in lists and in
 * events. Pure. */
#ifndef API_ROWS_H
#define API_ROWS_H

struct jw;

/* row: struct operation, journal_row, alarm_status, logring_line, instance_status. */
void rows_operation(struct jw *w, const void *row);
void rows_journal(struct jw *w, const void *row);
void rows_alarm(struct jw *w, const void *row);
void rows_log(struct jw *w, const void *row);
void rows_instance(struct jw *w, const void *row);

#endif
