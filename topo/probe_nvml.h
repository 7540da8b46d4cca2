/* topo/probe_nvml.h - the helper process that speaks to NVML (`llmrackd --probe nvml`).
 *
 * One JSON object a line: the first at once, one more for each byte read, until the input
 * ends. Nothing else in llmrackd loads the driver's library: a call that hangs or crashes
 * costs this process. The reader is nvml_report.h. */
#ifndef TOPO_PROBE_NVML_H
#define TOPO_PROBE_NVML_H

/* library: "libnvidia-ml.so.1". in_fd -1: one report. Returns the exit code: 0 also when
 * there is no driver (the report says so), 1 when nobody reads the answers. */
int probe_nvml_run(const char *library, int in_fd, int out_fd);

#endif
