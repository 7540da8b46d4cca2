/* daemon/ctrl/conf_doc.c - the rows as documentation. */
#include "daemon/ctrl/conf.h"

#include "daemon/ctrl/conf_rows.h"

bool conf_row(int i, struct conf_row_doc *ret)
{
    if (i < 0 || i >= n_conf_rows)
        return false;
    conf_row_type(&conf_rows[i], ret);
    return true;
}
