package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// The load of step 8: for about ten seconds, each request on a new connection, with a time limit.
const (
	rate     = 40
	lasting  = 10 * time.Second
	patience = "2" // seconds
)

// answer is the result of one request.
type answer struct {
	at  time.Time
	pod string // the pod that answered; "": none
	err string // curl's error message
}

// deletion deletes a back-end pod under load. A request may fail between the end of the pod and the change on the
// nodes. No request may fail after the pod has left the endpoints.
func deletion(ctx context.Context, d *demo) error {
	at, _, err := d.service(ctx, "backend-service")
	if err != nil {
		return err
	}
	pods, err := d.pods(ctx, "backend")
	if err != nil {
		return err
	}
	victim := pods[0]
	results, err := d.load(ctx, at)
	if err != nil {
		return err
	}
	var answers []answer
	deleted, left := time.Time{}, make(chan time.Time, 1)
	for a := range results {
		answers = append(answers, a)
		// A second of load first. Then delete, and watch the endpoints during the load.
		if len(answers) == rate {
			deleted = time.Now()
			if _, err := d.kubectl(ctx, "delete", "pod", victim.Metadata.Name, "--wait=false"); err != nil {
				return err
			}
			go d.watchLeave(ctx, victim.Status.PodIP, left)
		}
	}
	if deleted.IsZero() {
		return mismatch{fmt.Sprintf("%d answers in the first seconds", rate), fmt.Sprint(len(answers))}
	}
	select {
	case gone := <-left:
		if err := d.judge(victim, answers, deleted, gone); err != nil {
			return err
		}
		return d.awaitReplicas(ctx, "backend", len(pods))
	default:
		return mismatch{victim.Metadata.Name + " to leave the endpoints while requests ran", "it is still there"}
	}
}

// load starts the requests in the client pod. It closes the channel at the end.
func (d *demo) load(ctx context.Context, at netip.AddrPort) (<-chan answer, error) {
	n := rate * int(lasting.Seconds())
	args := []string{"kubectl", "exec", client, "--", "curl", "-s", "--rate", fmt.Sprintf("%d/s", rate),
		"--max-time", patience, "-H", "Connection: close", "-w", `%{http_code} %{errormsg}\n`, fmt.Sprintf("http://%s/?n=[1-%d]", at, n)}
	return d.requests(ctx, n, args...)
}

// requests runs n requests with curl and sends the answers to the channel.
func (d *demo) requests(ctx context.Context, n int, args ...string) (<-chan answer, error) {
	fmt.Fprintf(d.out, "   $ %s &\n", typed(d.lab, args))
	cmd := d.command(ctx, args...)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	results := make(chan answer, n)
	go func() {
		defer close(results)
		read(stdout, results)
		_ = cmd.Wait() // the answers say more than curl's exit status, which is that of its last request
	}()
	return results, nil
}

// read parses curl's output: a line with the answer's body, then a line with its status and error.
func read(from io.Reader, to chan<- answer) {
	pod := ""
	for s := bufio.NewScanner(from); s.Scan(); {
		line := s.Text()
		if strings.HasPrefix(line, "{") {
			var j job
			if json.Unmarshal([]byte(line), &j) == nil {
				pod = j.Pod
			}
			continue
		}
		a := answer{at: time.Now(), pod: pod}
		if code, why, _ := strings.Cut(line, " "); code != "200" || pod == "" {
			a.pod, a.err = "", strings.TrimSpace(code+" "+why)
		}
		to <- a
		pod = ""
	}
}

// watchLeave sends the time when an address leaves the back end's endpoints.
func (d *demo) watchLeave(ctx context.Context, addr netip.Addr, left chan<- time.Time) {
	for ctx.Err() == nil {
		// The time before the question: a request that returns later may have begun earlier, and counts.
		asked := time.Now()
		addrs, err := d.endpoints(ctx, "backend-service")
		if err == nil && !slices.Contains(addrs, addr) {
			left <- asked
			return
		}
	}
}

// judge counts the answers, prints them and decides.
func (d *demo) judge(victim pod, answers []answer, deleted, gone time.Time) error {
	count := make(map[string]int)
	var before, after []answer
	last := deleted
	for _, a := range answers {
		switch {
		case a.err == "":
			count[a.pod]++
			if a.pod == victim.Metadata.Name {
				last = a.at
			}
		case a.at.After(gone):
			after = append(after, a)
		default:
			before = append(before, a)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(count)) {
		mark := ""
		if name == victim.Metadata.Name {
			mark = fmt.Sprintf("  deleted; last answer %.1f s later", max(0, last.Sub(deleted)).Seconds())
		}
		fmt.Fprintf(d.out, "     %4d  %s%s\n", count[name], name, mark)
	}
	fmt.Fprintf(d.out, "     %4d  failed before the pod left the endpoints (%.1f s after the delete)\n", len(before), gone.Sub(deleted).Seconds())
	fmt.Fprintf(d.out, "     %4d  failed after\n", len(after))
	if want := rate * int(lasting.Seconds()); len(answers) != want {
		return mismatch{fmt.Sprintf("%d requests to be made", want), fmt.Sprint(len(answers))}
	}
	if len(after) > 0 {
		return mismatch{"no request to fail after the pod left the endpoints", fmt.Sprintf("%d failed, the first with %q", len(after), after[0].err)}
	}
	d.ok("%d requests while a pod was deleted, 0 failed after it left the endpoints", len(answers))
	return nil
}
