package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fairway-net/fairway/test/peers/process"
)

// A result has the figures of one program.
type result struct {
	cold, firstPass time.Duration // from the start of the process to the first pass; the pass alone
	change          []time.Duration
	add, remove     []time.Duration
	restart, again  time.Duration // cold and firstPass after a restart without changes
	usage           process.Usage // after all changes, before the restart
	coldCPU         time.Duration
	restartPeak     int64
	changeCPU       time.Duration // CPU time of one change
	// rolling is the time from the last change of a rolling update to the kernel. passes and CPU cover the whole
	// update.
	rolling, rollingCPU time.Duration
	rollingPasses       int
}

// A measurement is the run of one program.
type measurement struct {
	*world
	name    string
	argv    []string
	changes int
	pause   time.Duration // time between changes: kube-proxy waits a second between passes
	proc    *process.Process
}

func (m *measurement) run(ctx context.Context) (*result, error) {
	defer func() { _ = exec.Command("nft", "flush", "ruleset").Run() }() // in our own namespace
	r := &result{}
	var err error
	if r.cold, r.firstPass, err = m.start(ctx); err != nil {
		return nil, err
	}
	defer func() { _ = m.proc.Stop() }()
	before, err := m.proc.Usage()
	if err != nil {
		return nil, err
	}
	r.coldCPU = before.CPU
	if err := m.endpoints(ctx, r); err != nil {
		return nil, err
	}
	if r.usage, err = m.proc.Usage(); err != nil {
		return nil, err
	}
	r.changeCPU = (r.usage.CPU - before.CPU) / time.Duration(m.changes)
	if err := m.addRemove(ctx, r); err != nil {
		return nil, err
	}
	if err := m.rollingUpdate(ctx, r); err != nil {
		return nil, err
	}
	if err := m.proc.Stop(); err != nil {
		return nil, err
	}
	if r.restart, r.again, err = m.start(ctx); err != nil {
		return nil, err
	}
	if m.name == "fairway" && !strings.Contains(m.proc.Output(), "added=0 deleted=0") {
		return nil, fmt.Errorf("fairway has written elements although nothing had changed:\n%s", m.proc.Output())
	}
	u, err := m.proc.Usage()
	r.restartPeak = u.PeakRSS
	return r, err
}

// start starts the program and waits for its first pass over IPv4.
func (m *measurement) start(ctx context.Context) (took, pass time.Duration, err error) {
	if m.proc, err = process.Start(nil, m.name, m.argv...); err != nil {
		return 0, 0, err
	}
	done, err := m.await(ctx, m.proc.Began)
	if err != nil {
		return 0, 0, err
	}
	// kube-proxy writes a pass's duration a moment after its end.
	sum, err := m.awaitMetric(ctx, "kubeproxy_sync_proxy_rules_duration_seconds_sum", func(float64) bool { return true })
	return done.Sub(m.proc.Began), time.Duration(sum * 1e9), err
}

// await waits until a pass has ended after t, and returns the end of the pass.
func (m *measurement) await(ctx context.Context, t time.Time) (time.Time, error) {
	at := func(seconds float64) time.Time { return time.UnixMicro(int64(seconds * 1e6)) }
	seconds, err := m.awaitMetric(ctx, "kubeproxy_sync_proxy_rules_last_timestamp_seconds", func(s float64) bool { return at(s).After(t) })
	if err != nil {
		return t, err
	}
	return at(seconds), nil
}

// awaitMetric waits until a metric of the program has the wanted value.
func (m *measurement) awaitMetric(ctx context.Context, name string, wanted func(float64) bool) (float64, error) {
	began := time.Now()
	for {
		value, missing := metric(name)
		if missing == nil && wanted(value) {
			return value, nil
		}
		if err := m.proc.Alive(); err != nil {
			return 0, err
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("wait for %s of %s at %v: %w", name, m.name, m.size, errors.Join(ctx.Err(), missing))
		case <-time.After(min(time.Since(began)/4+time.Millisecond, 50*time.Millisecond)):
		}
	}
}

// timed makes a change, and returns the time to the end of the next pass.
func (m *measurement) timed(ctx context.Context, change func()) (time.Duration, error) {
	select { // a late pass for the last change may still run
	case <-ctx.Done():
	case <-time.After(m.pause):
	}
	t := time.Now()
	change()
	done, err := m.await(ctx, t)
	return done.Sub(t), err
}

func (m *measurement) endpoints(ctx context.Context, r *result) error {
	var last string
	for range m.changes {
		took, err := m.timed(ctx, func() { last = m.replaceEndpoint().String() })
		if err != nil {
			return err
		}
		r.change = append(r.change, took)
	}
	listing, err := exec.CommandContext(ctx, "nft", "list", "ruleset").Output()
	if err != nil {
		return fmt.Errorf("list the rules of %s: %w", m.name, err)
	}
	if !bytes.Contains(listing, []byte(last)) {
		return fmt.Errorf("%s says that it is done, but %s is not in the kernel", m.name, last)
	}
	return nil
}

// addRemove measures adding and removing a Service, whose slice exists before and after.
func (m *measurement) addRemove(ctx context.Context, r *result) error {
	for k := range max(3, m.changes/5) {
		i := m.services + 1000 + k
		svc, slice := m.service(i), m.slice(i, 0, podAddr(1), podAddr(2))
		for _, step := range []struct {
			do   func()
			into *[]time.Duration
		}{
			{func() { m.api.Put(slice) }, nil},
			{func() { m.api.Put(svc) }, &r.add},
			{func() { m.api.Delete(svc) }, &r.remove},
			{func() { m.api.Delete(slice) }, nil},
		} {
			took, err := m.timed(ctx, step.do)
			if err != nil {
				return err
			}
			if step.into != nil {
				*step.into = append(*step.into, took)
			}
		}
	}
	return nil
}

// rollingUpdate replaces the 100 pods of a Service, 3 changes each, 100 changes a second.
func (m *measurement) rollingUpdate(ctx context.Context, r *result) error {
	const count = "kubeproxy_sync_proxy_rules_duration_seconds_count"
	before, err := m.proc.Usage()
	if err != nil {
		return err
	}
	passes, err := metric(count)
	if err != nil {
		return err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var last time.Time
	for done := range 100 {
		for phase := 1; phase <= 3; phase++ {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-tick.C:
			}
			last = time.Now()
			m.roll(done+phase/3, phase%3)
		}
	}
	// The last change is in the kernel after the last pass, when no further passes come.
	at, err := m.await(ctx, last)
	if err != nil {
		return err
	}
	for {
		quiet, cancel := context.WithTimeout(ctx, max(2*time.Second, 3*at.Sub(last)))
		next, none := m.await(quiet, at)
		cancel()
		if none != nil {
			break
		}
		at = next
	}
	after, err := m.proc.Usage()
	if err != nil {
		return err
	}
	now, err := metric(count)
	r.rolling, r.rollingCPU, r.rollingPasses = at.Sub(last), after.CPU-before.CPU, int(now-passes)
	return err
}

// metric reads the IPv4 sample of a metric. Its name is equal in both programs.
func metric(name string) (float64, error) {
	resp, err := http.Get("http://127.0.0.1:10249/metrics")
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	for in := bufio.NewScanner(resp.Body); in.Scan(); {
		rest, ok := strings.CutPrefix(in.Text(), name)
		if ok && strings.HasPrefix(rest, `{ip_family="IPv4"}`) {
			return strconv.ParseFloat(strings.TrimSpace(strings.TrimPrefix(rest, `{ip_family="IPv4"}`)), 64)
		}
	}
	return 0, fmt.Errorf("there is no metric %s", name)
}

// quantile returns the q-th percentile of all.
func quantile(all []time.Duration, q int) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)*q/100, len(sorted)-1)]
}
