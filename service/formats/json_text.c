#include "service/formats/json_text.h"

int json_text_append(struct buf *out, const char *text, struct error *err)
{
    int rc;

    if ((rc = buf_append(out, "\"", 1, err)) != OK)
        return rc;
    for (const char *c = text; *c != '\0'; c++) {
        unsigned char byte = (unsigned char)*c;
        if (byte == '"' || byte == '\\')
            rc = buf_printf(out, err, "\\%c", byte);
        else if (byte < 0x20)
            rc = buf_printf(out, err, "\\u%04x", byte);
        else
            rc = buf_append(out, c, 1, err);
        if (rc != OK)
            return rc;
    }
    return buf_append(out, "\"", 1, err);
}
