package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/lab/cluster"
	"github.com/fairway-net/fairway/lab/controlplane"
	"github.com/fairway-net/fairway/lab/node"
)

// childCommand contains the commands with which the lab starts itself. It is hidden, because it is not for users.
func childCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "child", Hidden: true}
	for name, run := range map[string]func(context.Context, *slog.Logger, string) error{
		cluster.ChildControlPlane: runControlPlane,
		cluster.ChildInit:         runInit,
		cluster.ChildKubelet:      runKubelet,
	} {
		cmd.AddCommand(&cobra.Command{
			Use:  name + " DIR",
			Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				return run(cmd.Context(), slog.New(slog.NewTextHandler(os.Stderr, nil)), args[0])
			},
		})
	}
	return cmd
}

func runControlPlane(ctx context.Context, log *slog.Logger, dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return fmt.Errorf("read control plane: %w", err)
	}
	var config controlplane.Config
	if err := json.Unmarshal(data, &config); err != nil {
		return fmt.Errorf("decode control plane: %w", err)
	}
	if config.Forward, err = inherited(3); err != nil { // the first of ExtraFiles
		return err
	}
	for i := range config.Published {
		if config.Published[i].Listener, err = inherited(4 + i); err != nil {
			return err
		}
	}
	return controlplane.Run(ctx, log, config)
}

func inherited(fd int) (net.Listener, error) {
	socket := os.NewFile(uintptr(fd), "listener")
	defer socket.Close()
	l, err := net.FileListener(socket)
	if err != nil {
		return nil, fmt.Errorf("take over listener: %w", err)
	}
	return l, nil
}

func runInit(ctx context.Context, log *slog.Logger, dir string) error {
	config, err := node.Load(dir)
	if err != nil {
		return err
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	return config.Init(ctx, log, []string{exe, "child", cluster.ChildKubelet, dir})
}

func runKubelet(ctx context.Context, _ *slog.Logger, dir string) error {
	config, err := node.Load(dir)
	if err != nil {
		return err
	}
	return config.RunKubelet(ctx)
}
