package command

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fairway-net/fairway/internal/kube"
)

// A Completion is one way to write an argument: a prefix, and then the name of an object.
type Completion struct {
	Prefix   string // "pod/"; may be empty
	Resource string // "pods", "services" or "nodes"; empty: Prefix is the whole word
	// Bare says that NAME alone names an object in the command's namespace. Without it only NAMESPACE/NAME does.
	Bare bool
}

// A lister returns the names of objects. Only nodes and namespaces have none.
type lister func(resource, namespace string) []string

// CompleteObjects offers the names of the cluster's objects for the next argument. ways returns the ways to write it.
func CompleteObjects(e Env, ways func(args []string) []Completion) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, word string) ([]cobra.Completion, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), CompletionTimeout)
		defer cancel()
		connection, namespace := connectionOf(e, c)
		return offer(word, ways(args), namespace, func(resource, namespace string) []string {
			names, err := connection.Names(ctx, resource, namespace)
			if err != nil {
				return nil // a shell has no place for errors
			}
			return names
		})
	}
}

// connectionOf returns the connection and the namespace that the flags of a command say.
func connectionOf(e Env, c *cobra.Command) (connection kube.Connection, namespace string) {
	value := func(flag string) string {
		if f := c.Flags().Lookup(flag); f != nil {
			return f.Value.String()
		}
		return ""
	}
	connection = kube.Connection{Kubeconfig: value("kubeconfig"), Context: value("context"), Master: value("master"),
		AllowHTTP: value("allow-http-api-server") == "true", UserAgent: e.UserAgent(""), Person: true, QPS: 50, Burst: 100}
	if namespace = value("namespace"); namespace == "" {
		namespace = connection.Namespace()
	}
	return connection, namespace
}

// offer returns the completions of a word.
func offer(word string, ways []Completion, namespace string, names lister) (all []cobra.Completion, directive cobra.ShellCompDirective) {
	directive = cobra.ShellCompDirectiveNoFileComp
	add := func(text string, more bool) {
		if !strings.HasPrefix(text, word) {
			return
		}
		all = append(all, text)
		if more {
			directive |= cobra.ShellCompDirectiveNoSpace
		}
	}
	for _, w := range ways {
		rest, begun := strings.CutPrefix(word, w.Prefix)
		of, _, inNamespace := strings.Cut(rest, "/")
		switch {
		case w.Resource == "" || !begun:
			add(w.Prefix, w.Resource != "")
		case w.Resource == "nodes":
			for _, n := range names(w.Resource, "") {
				add(w.Prefix+n, false)
			}
		case inNamespace:
			for _, n := range names(w.Resource, of) {
				add(w.Prefix+of+"/"+n, false)
			}
		default:
			if w.Bare {
				for _, n := range names(w.Resource, namespace) {
					add(w.Prefix+n, false)
				}
			}
			for _, n := range names("namespaces", "") {
				add(w.Prefix+n+"/", true)
			}
		}
	}
	return all, directive
}
