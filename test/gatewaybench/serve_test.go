package gatewaybench

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"runtime/pprof"
	"syscall"
	"testing"

	"github.com/fairway-net/fairway/internal/gateway/server"
)

// serveEnv has the world, as JSON, in the environment of a process that serves it.
const serveEnv = "FAIRWAY_BENCH_WORLD"

// profileEnv names a file for a CPU profile of each gateway process.
const profileEnv = "FAIRWAY_BENCH_PROFILE"

func TestMain(m *testing.M) {
	text := os.Getenv(serveEnv)
	if text == "" {
		os.Exit(m.Run())
	}
	if err := serve(text); err != nil {
		fmt.Fprintln(os.Stderr, "serve:", err)
		os.Exit(1)
	}
}

// serve serves a world until SIGTERM.
func serve(text string) error {
	var w world
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if path := os.Getenv(profileEnv); path != "" {
		f, err := os.Create(fmt.Sprintf("%s.%d", path, w.Routes))
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	srv, err := server.New(server.Config{Address: netip.MustParseAddr("127.0.0.1")})
	if err != nil {
		return err
	}
	if err := srv.Apply(w.compiler().Table(), w.endpoints()); err != nil {
		return err
	}
	return srv.Run(ctx)
}
