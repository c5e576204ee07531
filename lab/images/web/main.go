// Web is the program in the lab's web images. `web jobs` is the two-tier application of the examples, and `web httpd` a
// server that says "It works!".
//
//	client ─► :8080 front end ─► http://backend-service:3000 ─► :3000 API ─► {"job":…,"pod":…}
//	client ─► :80   httpd     ─► <h1>It works!</h1>
//
// The examples use the same image for the back end and the front end, and start it without arguments. `web jobs`
// therefore serves both ports, and the Service selects one. It promises to lose no request when a pod is deleted: see
// serve.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// grace is the time for which a server still accepts connections after SIGTERM. The kubelet sends SIGTERM when the API
// server starts to tell the nodes about the endpoint's removal. New connections arrive until the last node knows.
const grace = 5 * time.Second

func main() {
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, log, os.Args[1:], os.Getenv); err != nil {
		fmt.Fprintln(os.Stderr, "web:", err)
		os.Exit(1)
	}
}

// run starts the servers of one role. getenv is os.Getenv outside of tests.
func run(ctx context.Context, log *slog.Logger, args []string, getenv func(string) string) error {
	pod, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read the pod's name: %w", err)
	}
	env := func(key, otherwise string) string {
		if v := getenv(key); v != "" {
			return v
		}
		return otherwise
	}
	wait, err := time.ParseDuration(env("GRACE", grace.String()))
	if err != nil {
		return fmt.Errorf("GRACE: %w [write a duration, as 5s]", err)
	}
	role := ""
	if len(args) == 1 {
		role = args[0]
	}
	switch role {
	case "jobs":
		back := env("BACKEND_URL", "http://backend-service:3000")
		return serve(ctx, log, wait,
			server{name: "api", addr: env("API_ADDR", ":3000"), handler: api(pod)},
			server{name: "front end", addr: env("FRONTEND_ADDR", ":8080"), handler: newFrontend(pod, back, log)})
	case "httpd":
		return serve(ctx, log, wait, server{name: "httpd", addr: env("ADDR", ":80"), handler: itWorks()})
	}
	return fmt.Errorf("unknown arguments %q [say `web jobs` or `web httpd`]", args)
}
