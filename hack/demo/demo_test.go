package main

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestAnswers(t *testing.T) {
	const name = "backend-service.default.svc.cluster.local"
	server := "Server:\t\t10.96.0.10\nAddress:\t10.96.0.10#53\n\n"
	for out, want := range map[string]bool{
		";; Got recursion not available\n" + server + "Name:\t" + name + "\nAddress: 10.96.5.81\n;; Got recursion not available\n\n": true,
		server + "Name:\t" + name + "\nAddress: 10.96.5.81\n\n":                                                                      true,
		server + "Name:\t" + name + "\nAddress: 10.96.5.82\n\n":                                                                      false,
		server + "Name:\t" + name + "\nAddress: 10.96.5.81\nName:\t" + name + "\nAddress: 10.96.5.82\n":                              false,
		server + "** server can't find backend-service: NXDOMAIN\n":                                                                  false,
		server + "Name:\tbackend-service.other.svc.cluster.local\nAddress: 10.96.5.81\n":                                             false,
	} {
		if got := answers(out, name, netip.MustParseAddr("10.96.5.81")); got != want {
			t.Errorf("answers = %v, want %v, for\n%s", got, want, out)
		}
	}
}

func TestReadLoad(t *testing.T) {
	const out = `{"job":"Instructor at Learnk8s","pod":"a"}
200 
000 Connection timed out after 2000 milliseconds
oops
503 
{"job":"Instructor at Learnk8s","pod":"b"}
200 
`
	results := make(chan answer, 10)
	read(strings.NewReader(out), results)
	close(results)
	var got []string
	for a := range results {
		got = append(got, a.pod+"|"+a.err)
	}
	want := "a|,|000 Connection timed out after 2000 milliseconds,|oops,|503,b|"
	if strings.Join(got, ",") != want {
		t.Errorf("read %v, want %v", strings.Join(got, ","), want)
	}
}

func TestJudge(t *testing.T) {
	victim := pod{}
	victim.Metadata.Name = "victim"
	start := time.Now()
	deleted, gone := start.Add(time.Second), start.Add(2*time.Second)
	load := func(failAt time.Duration, n int) []answer {
		var answers []answer
		for i := range n {
			answers = append(answers, answer{at: start.Add(time.Duration(i) * 25 * time.Millisecond), pod: "other"})
		}
		if failAt > 0 {
			answers[10] = answer{at: start.Add(failAt), err: "000 refused"}
		}
		return answers
	}
	full := rate * int(lasting.Seconds())
	for _, c := range []struct {
		name    string
		answers []answer
		holds   bool
	}{
		{"no failure", load(0, full), true},
		{"a failure while the pod leaves", load(1500*time.Millisecond, full), true},
		{"a failure after it has left", load(2500*time.Millisecond, full), false},
		{"requests missing", load(0, full-1), false},
	} {
		d := &demo{out: &bytes.Buffer{}}
		if err := d.judge(victim, c.answers, deleted, gone); (err == nil) != c.holds {
			t.Errorf("%s: judged %v, want it to hold: %v", c.name, err, c.holds)
		}
	}
}

func TestLongestGap(t *testing.T) {
	start := time.Now()
	at := func(ms int, err string) answer {
		return answer{at: start.Add(time.Duration(ms) * time.Millisecond), pod: "p", err: err}
	}
	cut := start.Add(100 * time.Millisecond)
	for _, c := range []struct {
		name    string
		answers []answer
		gap     time.Duration
		failed  int
	}{
		{"an outage", []answer{at(0, ""), at(90, ""), at(400, "000"), at(700, ""), at(750, "")}, 610 * time.Millisecond, 1},
		{"a gap before the cut does not count", []answer{at(-900, ""), at(90, ""), at(150, "")}, 60 * time.Millisecond, 0},
		{"no answer after it", []answer{at(0, ""), at(90, ""), at(400, "000")}, 0, 1},
	} {
		if gap, failed := longestGap(c.answers, cut); gap != c.gap || failed != c.failed {
			t.Errorf("%s: %v, %d failed; want %v, %d", c.name, gap, failed, c.gap, c.failed)
		}
	}
}

func TestTyped(t *testing.T) {
	got := typed("lab", []string{"client", "--", "curl", "http://x/?n=[1-3]", "it's", ""})
	if want := `lab client -- curl 'http://x/?n=[1-3]' 'it'\''s' ''`; got != want {
		t.Errorf("typed gives %s, want %s", got, want)
	}
}

// TestStepsAreBoundedAndTold runs the demo's frame with steps that succeed, fail and hang, on a lab that is a script.
func TestStepsAreBoundedAndTold(t *testing.T) {
	lab := filepath.Join(t.TempDir(), "lab")
	if err := os.WriteFile(lab, []byte("#!/bin/sh\necho \"said $*\"\n[ \"$1\" = hang ] && exec sleep 60\n[ \"$1\" != fail ]\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	call := func(verb string) func(context.Context, *demo) error {
		return func(ctx context.Context, d *demo) error { _, err := d.show(ctx, verb); return err }
	}
	for _, c := range []struct {
		name string
		run  func(context.Context, *demo) error
		want string // in the output
		ok   bool
	}{
		{"holds", call("work"), "said work\n", true},
		{"fails", call("fail"), "✗ expected `" + lab + " fail` to succeed\n     saw      exit status 1: said fail", false},
		{"hangs", call("hang"), "the step took longer than 200ms", false},
		{"never comes true", func(ctx context.Context, _ *demo) error {
			return until(ctx, "rain", func() (string, bool, error) { return "sun", false, nil })
		}, "expected rain\n     saw      sun", false},
		{"cannot ask", func(ctx context.Context, _ *demo) error {
			return until(ctx, "rain", func() (string, bool, error) { return "", true, errors.New("no window") })
		}, "no window", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			d := &demo{lab: lab, leave: true, out: &out}
			err := d.all(t.Context(), []step{{"one", 200 * time.Millisecond, c.run}})
			if (err == nil) != c.ok || !strings.Contains(out.String(), c.want) {
				t.Errorf("error %v, output\n%s\nwant %q", err, out.String(), c.want)
			}
			if !strings.Contains(out.String(), lab+" down") {
				t.Errorf("the output does not say how to end the lab:\n%s", out.String())
			}
		})
	}
}
