package agent

import (
	"context"
	"log/slog"
	"os"
	"runtime/debug"
	"strconv"

	"github.com/fairway-net/fairway/internal/kernel/process"
)

// limitMemory sets the garbage collector's target and the OOM score.
func (a *agent) limitMemory() {
	if os.Getenv("GOGC") == "" {
		// Most of the heap is the cluster's objects, which stay. Half the usual slack costs little CPU and saves a
		// third of the memory.
		debug.SetGCPercent(50)
	}
	releaseProgram(a.log)
	a.setOOMScore()
}

// releaseStart returns memory to the kernel once the first table is applied: the first lists and the first dump of the
// kernel's rules are garbage then.
func (b *base) releaseStart(ctx context.Context) error {
	select {
	case <-ctx.Done():
	case <-b.status.applied.Subscribe():
		debug.FreeOSMemory()
		releaseProgram(b.log)
	}
	return nil
}

func releaseProgram(log *slog.Logger) {
	if err := process.ReleaseProgram(); err != nil {
		log.Debug("more memory than needed stays in use", "err", err)
	}
}

// setOOMScore sets oom_score_adj. The kernel refuses it without CAP_SYS_RESOURCE, and the agent then runs without it.
func (a *agent) setOOMScore() {
	if a.cfg.OOMScoreAdj == nil {
		return
	}
	err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(*a.cfg.OOMScoreAdj)), 0)
	if err != nil {
		a.log.Warn("--oom-score-adj has no effect", "err", err)
	}
}
