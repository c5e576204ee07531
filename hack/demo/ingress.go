package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
)

// ingress gives both tiers one name for clients outside, with the annotations of ingress-nginx.
func ingress(ctx context.Context, d *demo) error {
	if gateways, err := d.quiet(ctx, "kubectl", "-n", "kube-system", "get", "daemonset", "fairway-gateway", "--ignore-not-found", "-o", "name"); err != nil || gateways == "" {
		fmt.Fprintf(d.out, "   This lab has no gateways: left out (`%s up --gateway` of a new lab has)\n", d.lab)
		return err
	}
	if _, err := d.kubectl(ctx, "apply", "-f", filepath.Join(filepath.Dir(d.manifests), "gateway/ingress.yaml")); err != nil {
		return err
	}
	at := ""
	if err := until(ctx, "an address for the Ingress shop", func() (string, bool, error) {
		out, err := d.quiet(ctx, "kubectl", "get", "ingress", "shop", "-o", "jsonpath={.status.loadBalancer.ingress[0].ip}")
		at = out
		return fmt.Sprintf("%q", out), out != "", err
	}); err != nil {
		return err
	}
	if _, err := d.kubectl(ctx, "get", "ingress", "shop"); err != nil {
		return err
	}
	for _, path := range []string{"/jobs/", "/"} {
		request := []string{"client", "--", "curl", "-sS", "--max-time", "5", "-H", "Host: shop.example", "http://" + at + path}
		if err := until(ctx, "an answer at "+path, func() (string, bool, error) {
			out, err := d.quiet(ctx, request...)
			return out, strings.Contains(out, title), err
		}); err != nil {
			return err
		}
		if _, err := d.show(ctx, request...); err != nil {
			return err
		}
	}
	d.ok("shop.example/jobs/ is the back end, shop.example/ the front end")
	return nil
}
