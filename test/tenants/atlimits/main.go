// Atlimits writes hostile objects that are as large as the API server takes them:
//
//	go run ./test/tenants/atlimits                               their names, and what must happen
//	go run ./test/tenants/atlimits NAME | kubectl create -f -    in the namespace of a tenant
//
// It promises to write a set whole, or to end with status 1.
package main

import (
	"fmt"
	"io"
	"os"

	"github.com/fairway-net/fairway/test/tenants"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string, w io.Writer) error {
	for _, s := range tenants.All {
		switch {
		case len(args) == 0:
			if _, err := fmt.Fprintf(w, "%-17s %s\n", s.Name, s.Must); err != nil {
				return err
			}
		case s.Name == args[0]:
			return s.Write(w)
		}
	}
	if len(args) > 0 {
		return fmt.Errorf("there is no set %q of hostile objects [without a name, all are listed]", args[0])
	}
	return nil
}
