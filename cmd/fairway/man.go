package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newMan builds the hidden command `fairway man DIR`, which makes the manual pages of a release.
func newMan(root *cobra.Command, version string) *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Hidden: true,
		Short:  "Write the manual pages of all commands",
		Long: `Write the manual pages of all commands into a folder, in section 1. $SOURCE_DATE_EPOCH is their date.

man reads them from a folder man1 in one of the folders of $MANPATH.`,
		Example: `  fairway man /usr/local/share/man/man1`,
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root.DisableAutoGenTag = true
			header := &doc.GenManHeader{Section: "1", Source: "fairway " + version, Manual: "Fairway"}
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return fmt.Errorf("write the manual pages: %w", err)
			}
			return nil
		},
	}
}
