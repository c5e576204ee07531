package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/internal/api"
	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/datapath/modes"
	"github.com/fairway-net/fairway/internal/kernel/numbers"
	"github.com/fairway-net/fairway/internal/loadbalancer/layer2/fence"
	"github.com/fairway-net/fairway/internal/service"
	"github.com/fairway-net/fairway/internal/testing/conformance"
	"github.com/fairway-net/fairway/internal/testing/testnet"
)

// programArgs is an environment variable. It makes a process of this test `fairway` with these arguments, a JSON list.
const programArgs = "FAIRWAY_TEST_ARGS"

func TestMain(m *testing.M) {
	if text := os.Getenv(programArgs); text != "" {
		var args []string
		if err := json.Unmarshal([]byte(text), &args); err != nil {
			panic(err)
		}
		os.Exit(run(context.Background(), command.Env{Stdin: strings.NewReader(""), Stdout: os.Stdout, Stderr: os.Stderr, Version: version}, args))
	}
	testnet.Main(m)
}

// TestDumpAndCleanup: what a mode wrote is found without naming it, and goes.
func TestDumpAndCleanup(t *testing.T) {
	for _, m := range modes.All() {
		t.Run(m.Name, func(t *testing.T) {
			err := testnet.NewNamespace(t, "node").Do(func() error {
				dp, err := modes.All().Choose(t.Context(), slog.New(slog.DiscardHandler), m.Name, modes.Options{})
				if err != nil {
					conformance.Missing(t, m.Name, err)
				}
				defer dp.Close()
				fails(t, "no mode has rules on this node", "dump")
				fails(t, "mode "+m.Name+" has no rules on this node", "dump", "--proxy-mode", m.Name)
				if _, err := dp.Sync(t.Context(), example()); err != nil {
					return err
				}
				prints(t, "mode "+m.Name+"; pods 10.244.0.0/16", "dump")
				prints(t, "10.96.0.8:80/TCP", "dump", "--proxy-mode", m.Name, "--service", "default/web")
				prints(t, "\n10.96.0.8:80/TCP default/web:http\n  ", "dump", "--proxy-mode", m.Name, "--service", "default/web", "--objects")
				prints(t, `"address": "10.96.0.8"`, "dump", "-o", "json")
				prints(t, `"kind": "`, "dump", "-o", "json", "--service", "default/web", "--objects")
				fails(t, `"x/y/z" does not name a Service`, "dump", "--service", "x/y/z")
				fails(t, "--objects is for one Service", "dump", "--objects")
				tells(t, `msg=removed what="rules of mode `+m.Name+`"`, "agent", "--cleanup")
				fails(t, "no mode has rules on this node", "dump")
				tells(t, `msg="nothing to remove"`, "agent", "--cleanup")
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCleanupOfFence: a speaker's rules go with `fairway agent --cleanup`, and with `fairway speaker --cleanup`.
func TestCleanupOfFence(t *testing.T) {
	for _, who := range []string{"agent", "speaker"} {
		err := testnet.NewNamespace(t, "node").Do(func() error {
			f, err := fence.Open(t.Context(), time.Second)
			if err != nil {
				return err
			}
			f.Close()
			tables := func() string {
				out, err := exec.Command("nft", "list", "tables").CombinedOutput()
				if err != nil {
					t.Errorf("%v: %s", err, out)
				}
				return string(out)
			}
			if is := tables(); !strings.Contains(is, numbers.TableFence) {
				t.Errorf("there is no fence: %s", is)
			}
			prints(t, "", who, "--cleanup")
			if is := tables(); is != "" {
				t.Errorf("%s --cleanup leaves %s", who, is)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// TestCleanupOfShares: rules about pods that filled the conntrack table go with the agent's, also without --pod-network.
func TestCleanupOfShares(t *testing.T) {
	err := testnet.NewNamespace(t, "node").Do(func() error {
		if out, err := exec.Command("nft", "add table inet "+numbers.TableConntrack).CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		prints(t, "", "agent", "--cleanup")
		if out, err := exec.Command("nft", "list", "tables").CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("agent --cleanup leaves %s, %v", out, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// example is a table of one Service.
func example() *service.Table {
	to := &service.Route{
		Action: service.Forward, Masquerade: service.MasqueradeOffCluster,
		Endpoints: []service.Endpoint{{Addr: netip.MustParseAddrPort("10.244.0.5:8080"), Local: true}},
	}
	return service.NewTable(service.Settings{Pods: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}, []*service.Frontend{{
		Addr: netip.MustParseAddrPort("10.96.0.8:80"), Proto: api.TCP,
		Service:  api.PortName{Name: api.Name{Namespace: "default", Name: "web"}, Port: "http"},
		Internal: to, External: to,
	}})
}

func fairway(t *testing.T, args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(t.Context(), command.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &err}, args)
	return code, out.String(), err.String()
}

func prints(t *testing.T, want string, args ...string) {
	t.Helper()
	if code, out, err := fairway(t, args...); code != 0 || !strings.Contains(out, want) {
		t.Errorf("fairway %v: status %d, want %q in\n%s%s", args, code, want, out, err)
	}
}

// tells runs a command that must succeed and log something.
func tells(t *testing.T, want string, args ...string) {
	t.Helper()
	if code, out, err := fairway(t, args...); code != 0 || !strings.Contains(err, want) {
		t.Errorf("fairway %v: status %d, want %q in\n%s%s", args, code, want, out, err)
	}
}

func fails(t *testing.T, want string, args ...string) {
	t.Helper()
	if code, out, err := fairway(t, args...); code != 1 || !strings.Contains(err, want) || !strings.HasPrefix(err, "error: ") || strings.Count(err, "\n") > 2 {
		t.Errorf("fairway %v: status %d, want %q in\n%s%s", args, code, want, out, err)
	}
}
