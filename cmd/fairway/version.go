package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// version is set by the Makefile with -ldflags -X; a plain `go build` says so.
var version = "v0.1.0-dev"

// userAgent names this program to the API server. It is made at the start, after -X.
var userAgent = "fairway/" + version

func newVersion(e env) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this program",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(e.stdout, "fairway %s %s %s/%s\n", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
