package main

import (
	"fmt"
	"io"
	"os"
	"time"
)

// table prints both programs' figures and their ratio. theirs may be nil.
func table(w io.Writer, n size, theirs, ours *result) {
	load, _ := os.ReadFile("/proc/loadavg") // an error leaves the load out of the table
	fmt.Fprintf(w, "\n%v (load %.4s)\n\n", n, load)
	fmt.Fprintln(w, "| | kube-proxy nftables | fairway | ratio |")
	fmt.Fprintln(w, "|---|---:|---:|---:|")
	duration := func(d time.Duration) string {
		switch {
		case d >= 10*time.Second:
			return d.Round(100 * time.Millisecond).String()
		case d >= time.Second:
			return d.Round(10 * time.Millisecond).String()
		case d >= 10*time.Millisecond:
			return d.Round(100 * time.Microsecond).String()
		}
		return d.Round(10 * time.Microsecond).String()
	}
	row := func(name string, value func(*result) float64, text func(float64) string) {
		b := value(ours)
		if theirs == nil {
			fmt.Fprintf(w, "| %s | – | %s | |\n", name, text(b))
			return
		}
		a := value(theirs)
		ratio := "–"
		if b > 0 {
			ratio = fmt.Sprintf("%.1f", a/b)
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s |\n", name, text(a), text(b), ratio)
	}
	times := func(name string, value func(*result) time.Duration) {
		row(name, func(r *result) float64 { return float64(value(r)) }, func(f float64) string { return duration(time.Duration(f)) })
	}
	megabytes := func(name string, value func(*result) int64) {
		row(name, func(r *result) float64 { return float64(value(r)) }, func(f float64) string { return fmt.Sprintf("%.0f MB", f/1e6) })
	}
	times("cold start, process to first pass done", func(r *result) time.Duration { return r.cold })
	times("  of that the pass", func(r *result) time.Duration { return r.firstPass })
	times("one endpoint changed, p50", func(r *result) time.Duration { return quantile(r.change, 50) })
	times("one endpoint changed, p99", func(r *result) time.Duration { return quantile(r.change, 99) })
	times("one Service added, p50", func(r *result) time.Duration { return quantile(r.add, 50) })
	times("one Service removed, p50", func(r *result) time.Duration { return quantile(r.remove, 50) })
	times("one Service added, p99", func(r *result) time.Duration { return quantile(r.add, 99) })
	times("one Service removed, p99", func(r *result) time.Duration { return quantile(r.remove, 99) })
	times("rolling update of 100 pods, last change to kernel", func(r *result) time.Duration { return r.rolling })
	times("  CPU of all its 300 changes", func(r *result) time.Duration { return r.rollingCPU })
	times("restart, nothing changed, to first pass done", func(r *result) time.Duration { return r.restart })
	times("  of that the pass", func(r *result) time.Duration { return r.again })
	times("CPU of the cold start", func(r *result) time.Duration { return r.coldCPU })
	times("CPU of one change", func(r *result) time.Duration { return r.changeCPU })
	megabytes("resident after the changes", func(r *result) int64 { return r.usage.RSS })
	megabytes("  of that the program's own file", func(r *result) int64 { return r.usage.FileRSS })
	megabytes("resident at most", func(r *result) int64 { return max(r.usage.PeakRSS, r.restartPeak) })
	megabytes("  after a restart", func(r *result) int64 { return r.restartPeak })
	if theirs != nil {
		fmt.Fprintf(w, "\n%d changes of kube-proxy were measured, %d of fairway.\n", len(theirs.change), len(ours.change))
	}
}
